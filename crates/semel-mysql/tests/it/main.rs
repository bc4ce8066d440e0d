//! Semel on MariaDB and MySQL.
