//! Walks the heap of a process and says what is in it and how long that took:
//! `cargo run --release -p rbloat-glibc --example walk -- PID`.

use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("which process?")?.parse()?;
    let frozen = capture::freeze(pid, capture::PATIENCE)?;
    let begun = Instant::now();
    let modules = capture::elf::modules(frozen.image());
    let have_modules = Instant::now();
    let malloc = allocator::glibc::walk(frozen.image())?;
    let walked = Instant::now();
    let allocator = allocator::find_allocator(frozen.image(), &modules, None).allocator;
    println!(
        "modules {:?}, walk {:?}, allocator {:?}",
        have_modules - begun,
        walked - have_modules,
        walked.elapsed()
    );
    let pause = frozen.thaw()?.pause;

    println!("{allocator}, {pause:?} in all, {:?}", malloc.settings);
    for (index, arena) in malloc.arenas.iter().enumerate() {
        println!("{} in {} heaps: {:?}", arena.address, arena.heaps, malloc.arena_totals(index));
    }
    println!("all: {:?}", malloc.totals());
    println!("trimmable: {}", malloc.trimmable.iter().map(capture::length).sum::<u64>());
    for finding in &malloc.findings {
        println!("{finding}");
    }
    Ok(())
}
