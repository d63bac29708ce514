//! Prints lines of cells as columns.

/// The first column to the left, all others to the right.
pub fn print_aligned(lines: &[Vec<String>]) {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let mut text = String::from("  ");
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            if column == 0 {
                text += &format!("{cell:<width$}");
            } else {
                text += &format!("  {cell:>width$}");
            }
        }
        println!("{}", text.trim_end());
    }
}
