//! Redis obeys the laws of keys.

use super::world::world;

semel_testkit::key_laws!(world);
