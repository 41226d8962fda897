-- Rights of services that enqueue: the functions run with their owner's rights.
GRANT USAGE ON SCHEMA compactory TO {enqueuer}, {executor};

GRANT EXECUTE ON FUNCTION compactory.enqueue(text, jsonb, text, text, timestamptz, boolean, text, jsonb),
    compactory.enqueue_all(text[], text[], text[], text[], integer[], timestamptz[], boolean[], text[], text[]) TO {enqueuer}, {executor};

-- Rights of executors, and of operators who retry, cancel and discard.
GRANT SELECT ON compactory.jobs TO {executor};

GRANT SELECT, INSERT, UPDATE, DELETE ON compactory.jobs_live, compactory.job_executors TO {executor};

GRANT SELECT, INSERT, DELETE ON compactory.jobs_finished TO {executor};

GRANT SELECT, INSERT, UPDATE ON compactory.job_ticks TO {executor};

GRANT SELECT, USAGE ON SEQUENCE compactory.jobs_id_seq TO {executor};

GRANT SELECT, INSERT, DELETE ON compactory.paused TO {executor};

GRANT SELECT, INSERT, UPDATE, DELETE ON compactory.job_limits TO {executor};

GRANT SELECT, INSERT, UPDATE ON compactory.job_rates TO {executor};

GRANT SELECT ON compactory.operator_log TO {executor};

GRANT EXECUTE ON FUNCTION compactory.log_act(text, text, jsonb, bigint, text) TO {executor};
