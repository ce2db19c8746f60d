//! The program from outside: its command line, what it refuses, what it leaves behind.

mod bad_gguf;
mod bad_input;
mod blocks;
mod forbidden;
mod interrupted;
mod models;
mod outputs;
mod peers;
mod places;
mod program;
mod usage;
mod ways;
