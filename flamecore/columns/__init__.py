"""Values as columns: what the codec writes and reads (`flamecore.codec`)."""
