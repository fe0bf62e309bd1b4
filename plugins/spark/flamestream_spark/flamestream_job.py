"""Job for spark-submit, with the arguments and exit codes of `flamestream run`.

    spark-submit --master yarn "$(python -m flamestream_spark.submit)" job.toml --workers 4

It imports what is installed, so a copy of it elsewhere does the same.
"""

import sys

from flamecore.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["run"]
    main()
