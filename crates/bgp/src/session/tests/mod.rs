//! One session with a peer that a test plays, and two sessions with each other.

mod collision;
mod random;
mod script;
mod single;
mod world;
