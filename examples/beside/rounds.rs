//! Rounds of a measurement: in each one all contenders in turn, and each held against the first
//! contender of the same round. Prints; judges nothing.

pub struct Rounds<'a> {
    contenders: Vec<&'a str>,
    figures: &'a [&'a str],
    /// By round, contender and figure.
    values: Vec<Vec<Vec<f64>>>,
}

impl<'a> Rounds<'a> {
    /// Measures every contender in every round.
    ///
    /// # Errors
    /// What the measurement says.
    pub fn run<T, E>(
        rounds: usize,
        contenders: &[(&'a str, T)],
        figures: &'a [&'a str],
        mut measure: impl FnMut(&T) -> Result<Vec<f64>, E>,
    ) -> Result<Self, E> {
        let mut values = Vec::new();
        for round in 0..rounds {
            let mut row = vec![Vec::new(); contenders.len()];
            // Each round begins with another, so that none is always measured after the same one.
            for step in 0..contenders.len() {
                let index = (round + step) % contenders.len();
                row[index] = measure(&contenders[index].1)?;
            }
            println!("round {} of {rounds}: {row:.1?}", round + 1);
            values.push(row);
        }
        let contenders = contenders.iter().map(|(name, _)| *name).collect();
        Ok(Self { contenders, figures, values })
    }

    /// A table for each figure: its median, and the ratios to the first contender in the same
    /// round: their median, and the least and the largest but one.
    pub fn print(&self) {
        for (figure, what) in self.figures.iter().enumerate() {
            println!("\n{what:<44}{:>12}{:>9}{:>18}", "median", "ratio", "but one");
            for (index, name) in self.contenders.iter().enumerate() {
                let values = sorted(self.values.iter().map(|row| row[index][figure]));
                let ratios =
                    sorted(self.values.iter().map(|row| row[index][figure] / row[0][figure]));
                println!(
                    "{name:<44}{:>12.2}{:>9.3}{:>9.3}{:>9.3}",
                    at(&values, values.len() / 2),
                    at(&ratios, ratios.len() / 2),
                    at(&ratios, 1),
                    at(&ratios, ratios.len().saturating_sub(2)),
                );
            }
        }
        println!("{} rounds; ratios are of the same round", self.values.len());
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn at(sorted: &[f64], index: usize) -> f64 {
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
