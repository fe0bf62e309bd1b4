"""Sessions of Spark: finding a Java, making or taking a session, and its errors."""
