package codec

import (
	"math"
	"slices"
	"time"
)

// Pace is the recent speed and success of calls, of one tool on one node or of a whole node. A call
// of 10 s ago counts half. The zero value has no calls; its methods must not be called
// concurrently.
type Pace struct {
	n, took, squares, failed float64
	at                       time.Time // up to when they are aged
}

const (
	// paceHalf is after how long a call counts half.
	paceHalf = 10 * time.Second
	// paceLast is how many of the last calls count, where [Pace.AddLast] is used.
	paceLast = 32
)

// Add counts a call that has ended.
func (p *Pace) Add(now time.Time, took time.Duration, failed bool) {
	p.age(now)
	s := took.Seconds()
	p.n, p.took, p.squares = p.n+1, p.took+s, p.squares+s*s
	if failed {
		p.failed++
	}
}

// AddLast is Add where only the last calls are of interest.
func (p *Pace) AddLast(now time.Time, took time.Duration, failed bool) {
	if p.n >= paceLast {
		p.scale((paceLast - 1) / p.n)
	}
	p.Add(now, took, failed)
}

func (p *Pace) age(now time.Time) {
	if since := now.Sub(p.at); since > paceHalf/1000 {
		p.scale(math.Exp2(-float64(since) / float64(paceHalf))) // by 0 at first
		p.at = now
	}
}

func (p *Pace) scale(f float64) {
	p.n, p.took, p.squares, p.failed = p.n*f, p.took*f, p.squares*f, p.failed*f
}

// Mean is how long a call takes; 0 where none is known.
func (p *Pace) Mean() time.Duration { return seconds(p.took, p.n) }

// Met is how long a call takes that is under way at any moment: where one of a second is
// among a hundred short ones, nearly a second.
func (p *Pace) Met() time.Duration { return seconds(p.squares, p.took) }

func seconds(sum, of float64) time.Duration {
	if of <= 0 {
		return 0
	}
	return time.Duration(sum / of * float64(time.Second))
}

// ToolPace is the pace of a tool on one node, as a heartbeat has it.
type ToolPace struct {
	// Calls is of how many calls it is, where older ones count less.
	Calls float64 `json:"calls"`
	// MS is how long they took on average, Failed which part of them failed.
	MS     float64 `json:"ms"`
	Failed float64 `json:"failed,omitempty"`
}

// Report returns the pace as it is published.
func (p *Pace) Report(now time.Time) (r ToolPace) {
	p.age(now)
	if p.n > 0 {
		r = ToolPace{tenth(p.n), tenth(p.took / p.n * 1000), math.Round(p.failed/p.n*100) / 100}
	}
	return r
}

func tenth(v float64) float64 { return math.Round(v*10) / 10 }

const (
	// slowBy is by how much slower than the others a node may be.
	slowBy = 2
	// slowLeast in ms is by how much more, so that calls of microseconds are not weighed.
	slowLeast = 10
	// failsBy is how many more calls may fail there, of all.
	failsBy = 0.2
	// WeightMin is the weight of the slowest: it is tried now and then.
	WeightMin = 0.001
)

// Weights are the relative frequencies at which the nodes of a tool are tried, by their paces; most
// have 1. A node that is slow or fails compared with the others gets less, down to [WeightMin]. A
// pace of few calls counts little, so that a node that is not tried recovers by itself.
func Weights(paces []ToolPace) []float64 {
	weights := make([]float64, len(paces))
	var times, fails []float64
	for i, p := range paces {
		weights[i] = 1
		if p.Calls >= 0.5 {
			times, fails = append(times, max(p.MS, 0)), append(fails, p.Failed)
		}
	}
	if len(times) < 2 {
		return weights
	}
	slices.Sort(times)
	slices.Sort(fails)
	usual, usually := times[(len(times)-1)/2], fails[(len(fails)-1)/2]
	for i, p := range paces {
		n := max(p.Calls, 0)
		ms, failed := (n*max(p.MS, 0)+usual)/(n+1), (n*p.Failed+usually)/(n+1) // a heartbeat may have any number
		if ms > slowBy*usual && ms-usual > slowLeast {
			weights[i] = math.Pow(slowBy*usual/ms, 3)
		}
		if more := failed - usually; more > failsBy {
			weights[i] *= math.Pow(max(1-more, 0), 3)
		}
		weights[i] = max(weights[i], WeightMin)
	}
	return weights
}
