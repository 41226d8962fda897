-- Limits also of the jobs of a tenant, and of groups that begin with a prefix.
ALTER TABLE compactory.job_limits
    ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'type' CHECK (kind IN ('type', 'group', 'tenant')),
    ADD COLUMN name text COLLATE "C";
UPDATE compactory.job_limits SET name = type;
ALTER TABLE compactory.job_limits DROP COLUMN type;
ALTER TABLE compactory.job_limits ALTER COLUMN kind DROP DEFAULT, ALTER COLUMN name SET NOT NULL, ADD PRIMARY KEY (kind, name);

ALTER TABLE compactory.job_rates
    ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'type',
    ADD COLUMN name text COLLATE "C";
UPDATE compactory.job_rates SET name = type;
ALTER TABLE compactory.job_rates DROP COLUMN type;
ALTER TABLE compactory.job_rates ALTER COLUMN kind DROP DEFAULT, ALTER COLUMN name SET NOT NULL, ADD PRIMARY KEY (kind, name);
