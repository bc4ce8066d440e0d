//! MariaDB obeys the laws of keys.

use super::world;

semel_testkit::key_laws!(world);
