-- Limits also of the jobs of a tenant, and of groups that begin with a prefix.
ALTER TABLE compactory.job_limits RENAME COLUMN type TO name;
ALTER TABLE compactory.job_limits ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'type' CHECK (kind IN ('type', 'group', 'tenant')),
    DROP CONSTRAINT job_limits_pkey, ADD PRIMARY KEY (kind, name);
ALTER TABLE compactory.job_limits ALTER COLUMN kind DROP DEFAULT;

ALTER TABLE compactory.job_rates RENAME COLUMN type TO name;
ALTER TABLE compactory.job_rates ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'type',
    DROP CONSTRAINT job_rates_pkey, ADD PRIMARY KEY (kind, name);
ALTER TABLE compactory.job_rates ALTER COLUMN kind DROP DEFAULT;
