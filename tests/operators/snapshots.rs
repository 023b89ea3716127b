//! A few small, readable cases whose text every device must reproduce exactly.

mod drafting;
mod experts;
mod tokens;

use insta::assert_snapshot;
use spec::{Handle, Result};

/// Compares every device with the same snapshot, and names the first device that differs.
fn on_every_device(name: &str, case: impl Fn(&Handle) -> Result<String>) {
    for handle in crate::common::handles() {
        let text = case(&handle).unwrap_or_else(|error| panic!("on {}: {error}", handle.device()));
        insta::with_settings!({ omit_expression => true }, {
            assert_snapshot!(name, text, &handle.device().to_string());
        });
    }
}
