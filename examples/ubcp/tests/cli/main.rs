//! The program from outside: its command line, what it refuses, what it leaves behind.

mod bad_input;
mod interrupted;
mod models;
mod places;
mod program;
mod usage;
mod ways;
