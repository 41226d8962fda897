-- The migration was applied, with this text.
INSERT INTO compactory.migrations (version, name, checksum) VALUES ({version}, {name}, {checksum});
