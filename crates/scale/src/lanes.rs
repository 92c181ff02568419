//! Something that does so many jobs at once, in the order in which they come: a disk, the cores of a node.

/// The lanes of one resource, each with the time at which it is free.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    free_at: Vec<f64>,
    busy: f64,
}

impl Lanes {
    pub(crate) fn new(count: usize) -> Self {
        Self { free_at: vec![0.0; count.max(1)], busy: 0.0 }
    }

    /// Does a job on the lane that is free first. Returns when it is done.
    pub(crate) fn run(&mut self, now: f64, duration: f64) -> f64 {
        self.busy += duration;
        let mut first = 0;
        for (lane, at) in self.free_at.iter().enumerate() {
            if *at < self.free_at[first] {
                first = lane;
            }
        }
        let end = self.free_at[first].max(now) + duration;
        self.free_at[first] = end;
        end
    }

    /// Work that is divided among all lanes, such as the many sends of one entry.
    pub(crate) fn run_divided(&mut self, now: f64, duration: f64) -> f64 {
        let part = duration / self.free_at.len() as f64;
        self.busy += duration;
        let mut end = now;
        for at in &mut self.free_at {
            *at = at.max(now) + part;
            end = end.max(*at);
        }
        end
    }

    /// How long a job would wait that came now.
    pub(crate) fn wait(&self, now: f64) -> f64 {
        self.free_at.iter().fold(f64::INFINITY, |first, at| first.min(*at)).max(now) - now
    }

    /// Forgets what was under way: the machine is gone.
    pub(crate) fn clear(&mut self, now: f64) {
        self.free_at.fill(now);
    }

    /// Seconds of work that were done, over all lanes.
    pub(crate) fn busy(&self) -> f64 {
        self.busy
    }

    pub(crate) fn count(&self) -> usize {
        self.free_at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_job_waits_for_the_first_of_two_lanes() {
        let mut lanes = Lanes::new(2);
        assert_eq!((lanes.run(0.0, 3.0), lanes.run(0.0, 1.0), lanes.run(0.0, 1.0)), (3.0, 1.0, 2.0));
        assert_eq!(lanes.wait(1.0), 1.0);
        assert_eq!(lanes.busy(), 5.0);
    }

    #[test]
    fn divided_work_ends_when_its_last_part_does() {
        let mut lanes = Lanes::new(2);
        lanes.run(0.0, 3.0);
        assert_eq!(lanes.run_divided(0.0, 2.0), 4.0);
    }
}
