package executor

// fifo is a queue of jobs with cheap ends.
type fifo struct {
	list []*job
	head int
}

func (q *fifo) len() int { return len(q.list) - q.head }

func (q *fifo) push(j *job) { q.list = append(q.list, j) }

func (q *fifo) pop() *job {
	if q.len() == 0 {
		return nil
	}
	j := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	} else if q.head > 1024 && q.head > len(q.list)/2 {
		q.list = append(q.list[:0], q.list[q.head:]...)
		q.head = 0
	}
	return j
}

func (q *fifo) remove(j *job) bool {
	for i := q.head; i < len(q.list); i++ {
		if q.list[i] == j {
			q.list = append(q.list[:i], q.list[i+1:]...)
			return true
		}
	}
	return false
}
