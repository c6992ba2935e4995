package lane

// Places is how many places the queue remembers.
func (q *Queue) Places() int { return len(q.places) }
