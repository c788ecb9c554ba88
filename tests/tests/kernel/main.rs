//! The data plane in the kernel, by BPF_PROG_TEST_RUN: needs root, and sends no packet over a network.

mod agreement;
mod maps;
mod packet_tables;
mod verifier;
