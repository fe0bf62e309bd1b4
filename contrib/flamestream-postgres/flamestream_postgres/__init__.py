"""PostgreSQL for flamestream: `sink` is the driver, `columns` says how payloads become rows, `server` starts one."""
