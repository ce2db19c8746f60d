//! Which way the bytes take to the destination, and why: the one place where `--via auto`
//! is decided.

use fs_adapter::Model;
use fs_adapter::placement::{self, Placement};
use fs_adapter::plan::Plan;
use fs_adapter::{DType, Format};
use ubio::source::file::probe::is_in_memory;
use ubio::topology;

use crate::args::{Args, Order, Route, Via};
use crate::destination::Destination;
use crate::exit::Failure;

/// What was asked, as far as the way depends on it.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// All tensors are wanted.
    whole: bool,
    /// They are wanted in the files' order.
    file_order: bool,
    align: Option<u64>,
    /// The result gets a name, so it must be one valid file.
    named: bool,
    one_file: bool,
    /// Bytes may come from storage.
    from_storage: bool,
    /// The source lies on a disk whose bytes the host of this virtual machine copies.
    host_copies: bool,
    /// The destination gets huge pages.
    huge: bool,
}

/// The chosen way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) via: Way,
    /// The result has the files' own layout.
    pub(crate) image: bool,
    /// Why, where it was not the user's word.
    pub(crate) reason: Option<&'static str>,
}

impl Choice {
    /// The layout's name in reports. What is mapped is as the files are.
    pub(crate) fn layout(self) -> &'static str {
        if self.image { "image" } else { "placed" }
    }
}

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through windows.
    Ub,
    /// Into an image of the files.
    InPlace,
    /// The page cache, mapped.
    Map,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ub => "ub",
            Self::InPlace => "in-place",
            Self::Map => "map",
        }
    }
}

/// Chooses the way for what `args` ask of `model`.
pub(crate) fn choose(
    args: &Args,
    model: &Model,
    destination: &Destination,
) -> Result<Choice, Failure> {
    let named = matches!(destination, Destination::Shm { .. });
    // Shards lie in one place.
    let first = model.files().first().map(fs_adapter::ModelFile::file);
    let bytes = model
        .files()
        .iter()
        .map(fs_adapter::ModelFile::len_bytes)
        .sum();
    let wish = Wish {
        whole: args.tensors.is_empty(),
        file_order: args.order == Order::File,
        align: args.align,
        named,
        one_file: model.files().len() == 1,
        from_storage: matches!(args.route, Route::Auto | Route::Direct)
            && !first.is_some_and(is_in_memory),
        host_copies: first.is_some_and(topology::is_on_virtual_disk),
        huge: topology::gives_huge_pages(named, bytes),
    };
    let asked = |via| Choice {
        via,
        image: via != Way::Ub,
        reason: None,
    };
    if args.advanced.prefault && (wish.named || args.via == Via::Map) {
        return Err(Failure::usage(
            "--prefault has no meaning for memory that is reserved or mapped anyway",
            "drop --prefault, or load to host: by another --via",
        ));
    }
    match args.via {
        Via::Auto => Ok(automatic(wish)),
        Via::Ub => Ok(asked(Way::Ub)),
        Via::InPlace => refuse_in_place(wish).map_or(Ok(asked(Way::InPlace)), Err),
        Via::Map => refuse_map(args, wish).map_or(Ok(asked(Way::Map)), Err),
    }
}

/// `--via auto`. The result has the files' own layout wherever nothing else is wanted: nothing
/// was selected, reordered or aligned, and a named result, which must be one valid file, comes
/// from one. That depends on no machine; how the bytes get there does. In place saves the copy
/// from window to destination, so it is taken
/// - where the disk writes to memory by itself: where the host of a virtual machine copies, it
///   copies faster to a few windows that stay in the cache;
/// - where the destination is on huge pages: on small ones direct reads are cut to small
///   requests.
///
/// Other layouts are the business of windows. The map is never chosen silently: it gives memory
/// that a writer of the file can take away.
fn automatic(wish: Wish) -> Choice {
    let choice = |via, image, reason| Choice {
        via,
        image,
        reason: Some(reason),
    };
    let placed = |reason| choice(Way::Ub, false, reason);
    if !wish.whole {
        placed("auto: some tensors were selected")
    } else if !wish.file_order {
        placed("auto: an order other than the file's was asked for")
    } else if wish.align.is_some() {
        placed("auto: an alignment was asked for")
    } else if wish.named && !wish.one_file {
        placed("auto: several files become one")
    } else if wish.from_storage && wish.host_copies {
        let reason = "auto: the host copies from this virtual disk, fastest to a few windows";
        choice(Way::Ub, true, reason)
    } else if wish.from_storage && !wish.huge {
        let reason = "auto: the destination gets no huge pages, and small ones read slowly";
        choice(Way::Ub, true, reason)
    } else {
        let reason = "auto: the file's own layout is kept, so no copy is needed";
        choice(Way::InPlace, true, reason)
    }
}

/// Why this cannot be had in place, if it cannot.
fn refuse_in_place(wish: Wish) -> Option<Failure> {
    let remedy = |option: &str| format!("use --via ub, or drop {option}");
    let refuse = |what: &str, option: &str| {
        Some(Failure::usage(
            format!("--via in-place keeps the file's own layout: {what}"),
            remedy(option),
        ))
    };
    if !wish.whole {
        refuse("it moves whole files, not selected tensors", "--tensors")
    } else if !wish.file_order {
        refuse("it cannot have another order", "--order layer")
    } else if wish.align.is_some() {
        refuse("it cannot align tensors", "--align")
    } else if wish.named && !wish.one_file {
        Some(Failure::usage(
            "--via in-place keeps the files' own layout, and a named result is one file, but \
             this model has several",
            "use --via ub, or DST host:",
        ))
    } else {
        None
    }
}

/// Why this cannot be mapped, if it cannot.
fn refuse_map(args: &Args, wish: Wish) -> Option<Failure> {
    let refuse = |what: &str, remedy: &str| {
        Some(Failure::usage(
            format!("--via map shows the page cache itself: {what}"),
            remedy,
        ))
    };
    if wish.named {
        refuse(
            "there is nothing to give a name to",
            "use DST host:, or let readers map the file",
        )
    } else if wish.align.is_some() {
        refuse("it cannot align tensors", "use --via ub, or drop --align")
    } else if args.route != Route::Auto {
        refuse("it has no routes", "drop --route")
    } else if args.trace.is_some() {
        refuse("it has no windows to trace", "drop --trace")
    } else {
        None
    }
}

/// Where each tensor goes on the chosen way, which is not the map.
pub(crate) fn place(
    args: &Args,
    choice: Choice,
    model: &Model,
    plan: &Plan,
    destination: &Destination,
) -> Result<Placement, Failure> {
    let named = matches!(destination, Destination::Shm { .. });
    let align = args.align.unwrap_or(ubio::limits::DEFAULT_ALIGN_BYTES);
    let placed = match (choice.image, named, model.format()) {
        (true, ..) => placement::image(model),
        (false, true, Format::Safetensors) => {
            check_safetensors_align(args.align, model, plan)?;
            placement::safetensors(model, plan)
        }
        (false, true, Format::Gguf) => placement::gguf(model, plan, args.align),
        _ => placement::packed(model, plan, align),
    };
    placed.map_err(|error| Failure::model(&error))
}

/// safetensors allows no gaps: behind a payload that begins on a page, tensors by falling
/// element size are aligned to their elements, and to nothing more.
fn check_safetensors_align(align: Option<u64>, model: &Model, plan: &Plan) -> Result<(), Failure> {
    let Some(align) = align else { return Ok(()) };
    let element_bytes = |dtype: DType| dtype.bits().map_or(1, |bits| (bits / 8).max(1));
    let smallest = plan
        .order
        .iter()
        .map(|&index| element_bytes(model.tensors()[index].dtype))
        .min();
    if smallest.is_none_or(|smallest| align <= smallest) {
        return Ok(());
    }
    Err(Failure::usage(
        format!(
            "--align {align}: safetensors allows no gaps, so tensors under a name are aligned \
             to their element type ({} here at least)",
            smallest.map_or(String::new(), |bytes| format!("{bytes} bytes"))
        ),
        "use DST host: for a larger alignment, or drop --align",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_place_only_where_nothing_speaks_against_it() {
        let best = Wish {
            whole: true,
            file_order: true,
            align: None,
            named: true,
            one_file: true,
            from_storage: true,
            host_copies: false,
            huge: true,
        };
        assert_eq!(automatic(best).via, Way::InPlace);
        let hot = Wish {
            from_storage: false,
            host_copies: true,
            huge: false,
            ..best
        };
        assert_eq!(automatic(hot).via, Way::InPlace);
        type Spoil = fn(&mut Wish);
        // What spoils it, and whether the layout stays.
        let spoilt: [(Spoil, bool); 6] = [
            (|wish| wish.whole = false, false),
            (|wish| wish.file_order = false, false),
            (|wish| wish.align = Some(4096), false),
            (|wish| wish.one_file = false, false),
            (|wish| wish.host_copies = true, true),
            (|wish| wish.huge = false, true),
        ];
        for (spoil, image) in spoilt {
            let mut wish = best;
            spoil(&mut wish);
            let choice = automatic(wish);
            assert_eq!((choice.via, choice.image), (Way::Ub, image), "{wish:?}");
            assert!(choice.reason.is_some());
        }
    }
}
