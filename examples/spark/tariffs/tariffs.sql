-- Tariffs that partners send as files: `compactory spark load` fills it.
CREATE TABLE tariffs (
    code       text          PRIMARY KEY,
    name       varchar(40)   NOT NULL,
    country    char(2)       NOT NULL,
    fee        numeric(10,2) NOT NULL,
    valid_from date,
    valid_to   date,
    changed    timestamptz
);
