//! The server: a real `mps-manager serve` on the simulated host, real clients, real kills.

mod admission;
mod auth;
mod clients;
mod daemons;
mod death;
mod drain;
mod foreign;
mod foreign_refused;
mod foreign_shared;
mod gpus;
mod interrupted;
mod isolation;
mod machine;
mod maintenance;
mod migration;
mod openapi;
mod ownership;
mod reads;
mod refusals;
mod run;
mod start;
mod start_refused;
mod tenants;
mod termination;
mod upgrade;
mod users;
