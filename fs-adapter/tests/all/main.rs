//! The crate seen from outside: formats byte by byte, folders with real files, properties.
//! One binary, so that it links once.

mod build;
mod gguf_header;
mod index_json;
mod links;
mod open_folder;
mod oracle;
mod place;
mod plan_order;
mod regressions;
mod safetensors_header;
mod seeds;
