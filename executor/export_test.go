package executor

// BasePids are the processes that indexes of the interpreters that are in use
// begin as copies of, as long as their end has not been noticed.
func (x *Executor) BasePids() []int {
	x.bases.mu.Lock()
	defer x.bases.mu.Unlock()
	var pids []int
	for _, b := range x.bases.by {
		<-b.ready
		if b.err == nil && !b.over() {
			pids = append(pids, b.proc.Pid())
		}
	}
	return pids
}

// Waiting counts the copies that wait for an index.
func (x *Executor) Waiting() int {
	x.bases.mu.Lock()
	defer x.bases.mu.Unlock()
	n := 0
	for _, b := range x.bases.by {
		b.mu.Lock()
		if b.blank != nil {
			n++
		}
		b.mu.Unlock()
	}
	return n
}
