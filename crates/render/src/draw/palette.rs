//! The colours of all pictures and pages.

use std::fmt::Write as _;

use serde::{Serialize, Serializer};

/// Declares the colours: what each is for, its name in style sheets, and its value on a light and on a dark ground.
macro_rules! palette {
    ($($colour:ident, $name:literal, $light:literal, $dark:literal;)*) => {
        /// A colour of the palette.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Colour { $($colour),* }

        impl Colour {
            pub(crate) const ALL: &[Self] = &[$(Self::$colour),*];

            /// Returns its name in style sheets and scripts.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$colour => $name),* }
            }

            const fn value(self, scheme: Scheme) -> u32 {
                match (self, scheme) {
                    $((Self::$colour, Scheme::Light) => $light, (Self::$colour, Scheme::Dark) => $dark),*
                }
            }
        }
    };
}

/// The colours of runs, and of code, in this order.
pub(crate) const SERIES: [Colour; 12] = [
    Colour::Stacks,
    Colour::RubyMalloc,
    Colour::Extensions,
    Colour::Vm,
    Colour::Jit,
    Colour::Untraced,
    Colour::Unreachable,
    Colour::Libraries,
    Colour::LiveSlots,
    Colour::Files,
    Colour::Overhead,
    Colour::Swapped,
];

palette! {
    Ground, "ground", 0xfb_faf8, 0x16_1513;
    Ink, "ink", 0x1d_1c1a, 0xec_e9e4;
    Dim, "dim", 0x6b_6761, 0xa0_9b93;
    Line, "line", 0xd9_d5ce, 0x3a_3733;
    Panel, "panel", 0xff_ffff, 0x20_1f1c;
    Mark, "mark", 0x0b_57d0, 0x8a_b4f8;
    // The map by use.
    InUse, "in-use", 0xd3_281b, 0xea_5548;
    InUseLittle, "in-use-little", 0xf3_b6ae, 0x6e_342e;
    Kept, "kept", 0x9b_9b9b, 0x7d_7d7d;
    Returned, "returned", 0xff_ffff, 0x24_221f;
    Swapped, "swapped", 0x7f_b3e6, 0x3c_6f9f;
    Lost, "lost", 0xff_d23f, 0xb3_8f1d;
    // The groups of causes.
    LiveSlots, "live-slots", 0xa8_324a, 0xd0_566f;
    RubyMalloc, "ruby-malloc", 0xe0_663a, 0xe0_663a;
    Vm, "vm", 0x8a_6fc0, 0xa4_8ad8;
    Jit, "jit", 0xc0_4f9e, 0xc0_4f9e;
    Extensions, "extensions", 0x1f_7a5c, 0x3a_a882;
    Libraries, "libraries", 0x5e_a3a0, 0x5e_a3a0;
    Unreachable, "unreachable", 0x11_1111, 0xf5_f5f5;
    Untraced, "untraced", 0xc9_963f, 0xc9_963f;
    FreeSlots, "free-slots", 0xe3_b9c2, 0x6d_464f;
    Unreturned, "unreturned", 0x8f_8f8f, 0x8a_8a8a;
    Fragmented, "fragmented", 0xb9_b9b9, 0x66_6666;
    Top, "top", 0xcf_cfcf, 0x54_5454;
    Cached, "cached", 0xa3_aebb, 0x6f_7a87;
    Overhead, "overhead", 0x6f_6557, 0x8f_826f;
    Stacks, "stacks", 0x3b_6fb6, 0x5f_92d6;
    Files, "files", 0xb8_c98a, 0x75_853f;
    Unknown, "unknown", 0xd8_cf4e, 0xa7_9f35;
}

/// The ground that a picture is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Colour {
    /// Returns its value as `#rrggbb`.
    pub(crate) fn hex(self, scheme: Scheme) -> String {
        format!("#{:06x}", self.value(scheme))
    }

    /// Returns red, green and blue on a light ground.
    pub(crate) const fn rgb(self) -> [u8; 3] {
        let [_, red, green, blue] = self.value(Scheme::Light).to_be_bytes();
        [red, green, blue]
    }
}

impl Serialize for Colour {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Returns the palette as variables of a style sheet.
pub(crate) fn style_sheet() -> String {
    let mut sheet = String::new();
    let rules =
        [(":root", "light", Scheme::Light), (":root[data-scheme=\"dark\"]", "dark", Scheme::Dark)];
    for (selector, name, scheme) in rules {
        let _ = write!(sheet, "{selector} {{ color-scheme: {name};");
        for colour in Colour::ALL {
            let _ = write!(sheet, " --{}: {};", colour.name(), colour.hex(scheme));
        }
        sheet.push_str(" }\n");
    }
    sheet
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_style_sheet_has_each_colour_on_both_grounds() {
        let names: BTreeSet<&str> = Colour::ALL.iter().map(|colour| colour.name()).collect();
        assert_eq!(names.len(), Colour::ALL.len());
        let sheet = style_sheet();
        for name in names {
            assert_eq!(sheet.matches(&format!("--{name}: #")).count(), 2, "{name}");
        }
        assert!(sheet.contains("--ground: #fbfaf8;") && sheet.contains("--ground: #161513;"));
        assert_eq!(Colour::Ground.rgb(), [0xfb, 0xfa, 0xf8]);
    }
}
