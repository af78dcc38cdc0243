use std::sync::LazyLock;

use image::ProcessState;
use linux::Pages;

/// The page states, which every capture of a stopped process and every core has.
pub(crate) fn pages_of(state: &ProcessState) -> &Pages {
    static NONE: LazyLock<Pages> = LazyLock::new(Pages::default);
    state.pages.as_ref().unwrap_or(&NONE)
}
