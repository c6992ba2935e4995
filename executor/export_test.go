package executor

// BasePids are the processes that indexes of the interpreters that are in use
// begin as copies of.
func (x *Executor) BasePids() []int {
	x.bases.mu.Lock()
	defer x.bases.mu.Unlock()
	var pids []int
	for _, b := range x.bases.by {
		<-b.ready
		if b.err == nil {
			pids = append(pids, b.proc.Pid())
		}
	}
	return pids
}
