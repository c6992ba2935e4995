package codec_test

import (
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
)

func TestPace(t *testing.T) {
	now := time.Now()
	var p codec.Pace
	if p.Mean() != 0 || p.Met() != 0 || p.Report(now) != (codec.ToolPace{}) {
		t.Errorf("of no calls: %v, %v, %+v", p.Mean(), p.Met(), p.Report(now))
	}
	for range 99 {
		p.Add(now, 5*time.Millisecond, false)
	}
	p.Add(now, time.Second, true)
	if mean := p.Mean(); mean < 14*time.Millisecond || mean > 15*time.Millisecond {
		t.Errorf("mean = %v", mean)
	}
	if met := p.Met(); met < 600*time.Millisecond {
		t.Errorf("a call that is met under way takes %v", met)
	}
	if r := p.Report(now); r.Calls != 100 || r.Failed != 0.01 {
		t.Errorf("report: %+v", r)
	}
	now = now.Add(10 * time.Second)
	if r := p.Report(now); r.Calls != 50 || r.MS != 14.9 && r.MS != 15 {
		t.Errorf("10 s later: %+v", r)
	}
	var last codec.Pace
	for range 1000 {
		last.AddLast(now, time.Second, true)
	}
	for range 200 {
		last.AddLast(now, time.Millisecond, false)
	}
	if r := last.Report(now); r.Calls != 32 || r.MS > 10 || r.Failed > 0.01 {
		t.Errorf("of the last calls: %+v", r)
	}
}

func TestWeights(t *testing.T) {
	well := codec.ToolPace{Calls: 32, MS: 100}
	with := func(p codec.ToolPace) float64 {
		w := codec.Weights([]codec.ToolPace{well, well, p, well})
		if w[0] != 1 || w[1] != 1 || w[3] != 1 {
			t.Errorf("beside %+v the others have %v", p, w)
		}
		return w[2]
	}
	for _, p := range []codec.ToolPace{well, {}, {Calls: 32, MS: 190}, {Calls: 32, MS: 1}, {Calls: 0.1, MS: 10_000, Failed: 1}, {Calls: 32, MS: 100, Failed: 0.1}} {
		if w := with(p); w < 0.9 && p.Calls > 1 || w == 0 {
			t.Errorf("%+v has %v", p, w)
		}
	}
	if w := with(codec.ToolPace{Calls: 32, MS: 1000}); w > 0.02 || w < codec.WeightMin {
		t.Errorf("ten times slower: %v", w)
	}
	if w := with(codec.ToolPace{Calls: 32, MS: 10, Failed: 1}); w > 0.02 || w < codec.WeightMin {
		t.Errorf("where all calls fail, and soon: %v", w)
	}
	if slow, less := with(codec.ToolPace{Calls: 32, MS: 1000}), with(codec.ToolPace{Calls: 0.3, MS: 1000}); less < 10*slow {
		t.Errorf("a slow node gets %v, and %v when nothing was heard of it for long", slow, less)
	}
	// Numbers that no node of ours sends: an answer with NaN could not be written as JSON.
	for _, all := range [][]codec.ToolPace{
		{{Calls: 1, MS: 20}, {Calls: 1, MS: -20}}, {{Calls: 1e308, MS: 1e308}, {Calls: 1e308, MS: 1e308}, {Calls: -1, MS: -1e308, Failed: -1e308}},
		{{Calls: 1, MS: 1e308, Failed: 1e308}, well, well},
	} {
		for i, w := range codec.Weights(all) {
			if !(w >= codec.WeightMin && w <= 1) {
				t.Errorf("%+v: %v for %d", all, w, i)
			}
		}
	}
	for _, all := range [][]codec.ToolPace{
		nil, {well}, {well, {}},
		{{Calls: 32, MS: 0.1}, {Calls: 32, MS: 2}}, // both at once, for any caller
		{{Calls: 9, MS: 1, Failed: 1}, {Calls: 9, MS: 1, Failed: 1}},
	} {
		for i, w := range codec.Weights(all) {
			if w != 1 {
				t.Errorf("%+v: %v for %d", all, w, i)
			}
		}
	}
}
