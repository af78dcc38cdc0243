//! Scenes as pixels, and pixels as PNG: for a ticket or a chat.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

use super::{Scene, font, svg};

/// Draws a scene, on a light ground.
pub(crate) fn rasterize(scene: &Scene) -> Pixmap {
    let options = Options {
        font_family: font::FAMILY.into(),
        fontdb: font::DATABASE.clone(),
        ..Options::default()
    };
    let tree = Tree::from_str(&svg(scene, ""), &options).expect("a scene is well-formed SVG");
    let size = tree.size().to_int_size();
    let mut pixmap = Pixmap::new(size.width(), size.height()).expect("a picture has pixels");
    resvg::render(&tree, Transform::identity(), &mut pixmap.as_mut());
    pixmap
}

/// Encodes pixels, all of them opaque.
pub(crate) fn encode(pixmap: &Pixmap) -> Vec<u8> {
    let rgb: Vec<u8> =
        pixmap.data().chunks_exact(4).flat_map(|pixel| pixel[..3].iter().copied()).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, pixmap.width(), pixmap.height());
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&rgb));
    written.expect("a Vec takes all bytes, and each pixel has three");
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draw::{Anchor, Colour};

    fn drawn(text: &str) -> Pixmap {
        let mut scene = Scene::new(200.0);
        scene.height = 30.0;
        scene.text((5.0, 20.0), Anchor::Start, Colour::Ink, text);
        rasterize(&scene)
    }

    #[test]
    fn texts_are_drawn_in_the_font_of_the_binary() {
        let inked = |text: &str| {
            let pixmap = drawn(text);
            pixmap.data().chunks_exact(4).filter(|pixel| pixel[0] < 100).count()
        };
        assert_eq!(inked(""), 0);
        assert!(inked("m") > 5 && inked("mm") > inked("m"));
    }

    proptest! {
        #[test]
        fn any_text_can_be_drawn(text in any::<String>()) {
            prop_assert!(!encode(&drawn(&text)).is_empty());
        }
    }
}
