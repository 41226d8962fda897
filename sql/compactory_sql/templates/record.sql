-- Note that the migration is applied.
INSERT INTO compactory.migrations (version, name, checksum) VALUES ({version}, {name}, {checksum});
