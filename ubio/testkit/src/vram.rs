//! The suite for any VRAM backend.
