-- A source writes an id here whenever it begins to publish, and into every offset that it stores in Kafka from then on. An
-- offset with an id that is not here was made beside a later state of this database: an older copy of it was put back.
ALTER TABLE compactory.leases ADD COLUMN sessions uuid[] NOT NULL DEFAULT '{}';
