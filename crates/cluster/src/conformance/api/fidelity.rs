//! The requests of the tests of the embedded API, which expect of each what the documentation of Kubernetes says.

// Some is only of use to those tests.
#[allow(dead_code)]
#[path = "../../../../api/tests/api/fidelity/cases.rs"]
pub mod cases;
#[allow(dead_code)]
#[path = "../../../../api/tests/api/fidelity/kinds.rs"]
pub mod kinds;
#[path = "../../../../api/tests/api/widgets.rs"]
pub mod widgets;
