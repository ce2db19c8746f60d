//! Admin commands, one by one: what they do, and what each refuses.
