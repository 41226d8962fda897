-- Installing creates schema compactory, which then belongs to this role.
GRANT CREATE ON DATABASE {database} TO {owner};
