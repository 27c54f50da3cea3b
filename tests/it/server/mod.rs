//! The server: a real `mps-manager serve` on the simulated host, real clients, real kills.

mod admission;
mod auth;
mod clients;
mod daemons;
mod death;
mod drain;
mod drift;
mod gpus;
mod interrupted;
mod isolation;
mod machine;
mod maintenance;
mod migration;
mod openapi;
mod outsiders;
mod ownership;
mod queue;
mod reads;
mod refusals;
mod run;
mod start;
mod start_refused;
mod tenants;
mod termination;
mod users;
mod wake;
