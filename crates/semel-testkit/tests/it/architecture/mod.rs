//! The rules of the house as tests. Each failure names the file and says where the rule is written.

mod dependencies;
mod documents;
mod files;
mod rules;
mod sources;
