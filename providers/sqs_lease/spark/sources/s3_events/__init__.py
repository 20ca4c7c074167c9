"""S3 notifications: what they say, how the objects are read, and the source that makes records of them."""
