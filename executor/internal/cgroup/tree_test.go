package cgroup

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

const mine = "toolmesh-0123456789abcdef"

func TestMain(m *testing.M) {
	if dir := os.Getenv("TOOLMESH_TEST_DELEGATED"); dir != "" {
		beDelegated(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// opened opens a tree on a fake kernel.
func opened(t *testing.T, f *fake, record string) *Tree {
	t.Helper()
	return open(mine, record, slog.New(slog.DiscardHandler), f.kernel(), "memory")
}

func diff(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// A process that is alone in its group of version 2 moves aside, so that there
// may be groups beside it.
func TestOnlyVersion2(t *testing.T) {
	t.Parallel()
	f := newFake(t, V2)
	tree := opened(t, f, "")
	if tree.Kind() != V2 || tree.Why() != "" {
		t.Fatalf("kind %q, because %q", tree.Kind(), tree.Why())
	}
	diff(t, "our group", f.get("service/toolmesh-agent/cgroup.procs"), "4711")
	diff(t, "groups before the first is made", f.groups(), []string{"/service", "/service/toolmesh-agent"})

	g, err := tree.New()
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "what is on", f.get("service/cgroup.subtree_control")+", "+f.get("service/"+mine+"/cgroup.subtree_control"), "memory pids, pids memory")
	if err := g.Add(99); err != nil {
		t.Fatal(err)
	}
	f.set("service/"+mine+"/w1/memory.current", "5000\n")
	if used, err := g.Usage(); used != 5000 || err != nil {
		t.Errorf("usage %d, %v", used, err)
	}
	if err := g.Limit(1 << 20); err != nil {
		t.Fatal(err)
	}
	is := map[string]string{}
	if err := g.LimitTasks(20); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"memory.max", "memory.oom.group", "memory.swap.max", "cgroup.procs", "pids.max"} {
		is[name] = f.get("service/" + mine + "/w1/" + name)
	}
	diff(t, "the group", is, map[string]string{
		"memory.max": "1048576", "memory.oom.group": "1", "memory.swap.max": "0", "cgroup.procs": "99", "pids.max": "20",
	})
	f.set("service/"+mine+"/w1/memory.peak", "1048576\n")
	if g.Kills() != 0 || g.Reached() || g.Peak() != 1<<20 {
		t.Errorf("%d killed, reached: %t, peak %d, before anything was", g.Kills(), g.Reached(), g.Peak())
	}
	f.set("service/"+mine+"/w1/memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n")
	if g.Kills() != 3 || !g.Reached() {
		t.Errorf("%d killed, reached: %t, want 3 and true", g.Kills(), g.Reached())
	}
	f.set("service/"+mine+"/w1/pids.events", "max 4\n")
	if n := g.Refused(); n != 4 {
		t.Errorf("%d processes were refused, want 4", n)
	}
	tree.Close()
	diff(t, "groups after the end", f.groups(), []string{"/service", "/service/toolmesh-agent"})
	diff(t, "killed", f.killed, []string{"99"})
}

// Without a controller for processes there are groups for memory all the same.
func TestVersion2WithoutPids(t *testing.T) {
	t.Parallel()
	f := newFake(t, V2)
	f.set("service/cgroup.controllers", "cpu memory")
	tree := opened(t, f, "")
	defer tree.Close()
	if g := tree.ForLimits(0, 20); g != nil {
		t.Error("a group was made that bounds nothing")
	}
	g := tree.ForLimits(1<<20, 20)
	if g == nil {
		t.Fatalf("no group was made (%s)", tree.Why())
	}
	if g.Refused() != 0 || f.get("service/"+mine+"/w1/memory.max") == "-" || f.get("service/"+mine+"/w1/pids.max") != "-" {
		t.Errorf("groups %v", f.groups())
	}
}

// The next tree of the process finds itself in the group that the first one
// moved it to.
func TestVersion2AfterARestart(t *testing.T) {
	t.Parallel()
	f := newFake(t, V2)
	opened(t, f, "").Close()
	f.proc["cgroup"] = groupLine(V2, "/service/toolmesh-agent")
	tree := opened(t, f, "")
	defer tree.Close()
	diff(t, "kind", tree.Kind(), V2)
	if _, err := tree.New(); err != nil {
		t.Fatal(err)
	}
	diff(t, "groups", f.groups(), []string{"/service", "/service/" + mine, "/service/" + mine + "/w1", "/service/toolmesh-agent"})
}

// The root of all groups may have processes next to groups: none is moved.
func TestVersion2InTheRoot(t *testing.T) {
	t.Parallel()
	f := newFake(t, V2)
	f.join("", self)
	f.join("", 12)
	f.proc["cgroup"] = groupLine(V2, "/")
	tree := opened(t, f, "")
	defer tree.Close()
	if tree.Kind() != V2 || f.get("cgroup.procs") != "4711\n12" {
		t.Errorf("kind %q (%s), processes of the root %q", tree.Kind(), tree.Why(), f.get("cgroup.procs"))
	}
}

// Version 1 allows processes beside groups, and has other names.
func TestVersion1(t *testing.T) {
	t.Parallel()
	f := newFake(t, V1)
	f.join("/service", 12)
	tree := opened(t, f, "")
	if tree.Kind() != V1 {
		t.Fatalf("kind %q, because %q", tree.Kind(), tree.Why())
	}
	g, err := tree.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(8 << 20); err != nil {
		t.Fatal(err)
	}
	dir := "service/" + mine + "/w1/"
	diff(t, "bounds", f.get(dir+"memory.limit_in_bytes")+" "+f.get(dir+"memory.memsw.limit_in_bytes"), "8388608 8388608")
	f.set(dir+"memory.usage_in_bytes", "5000\n")
	f.set(dir+"memory.max_usage_in_bytes", "4000000\n")
	if g.Reached() {
		t.Error("the limit was reached at half of it")
	}
	f.set(dir+"memory.max_usage_in_bytes", "8300000\n")
	f.set(dir+"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	used, err := g.Usage()
	if used != 5000 || err != nil || g.Peak() != 8300000 || g.Kills() != 1 || !g.Reached() {
		t.Errorf("usage %d, %v, peak %d, %d killed, reached: %t", used, err, g.Peak(), g.Kills(), g.Reached())
	}
	if err := g.Add(99); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{0, -1, 1} {
		if err := g.Add(pid); err == nil {
			t.Errorf("process %d was moved into a group", pid)
		}
	}
	if err := os.Remove(filepath.Join(f.root, dir, "memory.memsw.limit_in_bytes")); err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(2 << 20); err != nil {
		t.Errorf("without an account of the swap space: %v", err)
	}
	g.Close()
	g.Close()
	tree.wg.Wait()
	if err := f.rmdir(f.root + "/service/" + mine); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.New(); err != nil {
		t.Errorf("after somebody removed the folder: %v", err)
	}
	tree.Close()
	diff(t, "groups after the end", f.groups(), []string{"/service"})
	diff(t, "killed", f.killed, []string{"99"})
	diff(t, "our group", f.get("service/cgroup.procs"), "4711\n12")
}

// Where groups are not to be had there is a reason, and nothing is different.
func TestUnavailableGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		kind   Kind
		change func(f *fake)
		why    string
	}{
		{"others are in the group", V2, func(f *fake) { f.join("/service", 12) }, "other processes"},
		{"processes of another PID namespace are", V2, func(f *fake) { f.set("service/cgroup.procs", "0\n4711\n") }, "other processes"},
		{"read only, version 2", V2, func(f *fake) { f.ro = true }, "not delegated"},
		{"read only, version 1", V1, func(f *fake) { f.ro = true }, "make a control group in"},
		{"another user's", V1, func(f *fake) { f.alien = syscall.EACCES }, "permission denied"},
		{"no more groups", V2, func(f *fake) { f.alien = syscall.EAGAIN }, "make a control group in"},
		{"no memory controller", V2, func(f *fake) { f.set("service/cgroup.controllers", "cpu pids") }, "no control groups with a memory controller"},
		{"groups that are not bounded by those above", V1, func(f *fake) { f.set("service/memory.use_hierarchy", "0") }, "use_hierarchy"},
		{"nothing mounted", V2, func(f *fake) { f.proc["mountinfo"] = "" }, "are mounted"},
		{"no such system", V2, func(f *fake) { delete(f.proc, "mountinfo") }, "no control groups"},
		{"no such kernel", V2, func(f *fake) { delete(f.proc, "cgroup") }, "no control groups"},
		{"a group outside of what is mounted", V2, func(f *fake) { f.proc["cgroup"] = "0::/../other\n" }, "are mounted"},
		{"a group beside the mounted one", V2, func(f *fake) { f.proc["mountinfo"] = mountLine(V2, "/serv", f.root) }, "are mounted"},
		{"a group that is gone", V2, func(f *fake) { f.proc["cgroup"] = "0::/gone (deleted)\n" }, "read control group"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, c.kind)
			c.change(f)
			procs := f.get("service/cgroup.procs")
			tree := opened(t, f, "")
			if tree.Kind() != "" || !strings.Contains(tree.Why(), c.why) {
				t.Errorf("kind %q, because %q, want none, because of %q", tree.Kind(), tree.Why(), c.why)
			}
			if _, err := tree.New(); err == nil {
				t.Error("a group was made all the same")
			}
			tree.Close()
			diff(t, "groups", f.groups(), []string{"/service"})
			diff(t, "what is on", strings.TrimPrefix(f.get("service/cgroup.subtree_control"), "-"), "")
			diff(t, "processes of the group", f.get("service/cgroup.procs"), procs)
		})
	}
}

// On a kernel without counts of killed processes, a group's kill looks like a crash: such groups
// are not used.
func TestKernelThatDoesNotCount(t *testing.T) {
	t.Parallel()
	f := newFake(t, V1)
	k := f.kernel()
	k.mkdir = func(dir string) error {
		err := f.mkdir(dir)
		if err == nil {
			f.set(strings.TrimPrefix(dir, f.root)+"/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
		}
		return err
	}
	tree := open(mine, "", slog.New(slog.DiscardHandler), k, "memory")
	if tree.Kind() != "" || !strings.Contains(tree.Why(), "does not count") {
		t.Errorf("kind %q, because %q", tree.Kind(), tree.Why())
	}
	diff(t, "groups", f.groups(), []string{"/service"})
}

// Where the memory controller is with version 1, version 2 is of no use.
func TestBothVersionsMounted(t *testing.T) {
	t.Parallel()
	two, one := newFake(t, V2), newFake(t, V1)
	two.set("service/cgroup.controllers", "hugetlb")
	one.proc["mountinfo"] = two.proc["mountinfo"] + one.proc["mountinfo"]
	one.proc["cgroup"] = two.proc["cgroup"] + one.proc["cgroup"]
	tree := opened(t, one, "")
	defer tree.Close()
	if tree.Kind() != V1 || tree.dir != one.root+"/service/"+mine {
		t.Errorf("kind %q (%s) in %q", tree.Kind(), tree.Why(), tree.dir)
	}
	diff(t, "groups of version 2", two.groups(), []string{"/service"})
}

// Groups of a killed process are removed with their processes; another process's are not.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{V1, V2} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := newFake(t, kind)
			record := filepath.Join(t.TempDir(), "record")
			killed := opened(t, f, record) // never closed
			g, err := killed.New()
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Add(99); err != nil {
				t.Fatal(err)
			}
			f.add("/service/" + mine + "/w1/made")
			f.add("/service/" + mine + "/w1/made/by-a-tool")
			f.join("/service/"+mine+"/w1/made/by-a-tool", 98)
			other := "/service/toolmesh-00000000000000ff"
			f.add(other)
			f.add(other + "/w1")
			f.join(other+"/w1", 55)
			// The next one starts in another group.
			f.add("/other")
			f.join("/other", self)
			f.proc["cgroup"] = groupLine(kind, "/other")
			next := opened(t, f, record)
			diff(t, "the places of groups", matching(f.groups(), "toolmesh-0"), []string{other, other + "/w1"})
			diff(t, "killed", f.killed, []string{"99", "98"})
			diff(t, "another's process", f.get(other+"/w1/cgroup.procs"), "55")

			// And the one after that in the same, without a record.
			if _, err := next.New(); err != nil {
				t.Fatal(err)
			}
			if kind == V2 {
				f.proc["cgroup"] = groupLine(kind, "/other/"+leaf)
			}
			again := opened(t, f, "")
			diff(t, "groups", matching(f.groups(), "/w"), []string{other + "/w1"})
			again.Close()
		})
	}
}

// A record that names foreign groups does not remove them.
func TestRecordOfAnother(t *testing.T) {
	t.Parallel()
	f := newFake(t, V1)
	other := "/service/toolmesh-00000000000000ff"
	f.add(other)
	f.join(other, 55)
	record := filepath.Join(t.TempDir(), "record")
	for _, text := range []string{f.root + other + "\n", other, "", "\x00", mine} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		opened(t, f, record).Close()
		diff(t, "groups", f.groups(), []string{"/service", other})
	}
	if len(f.killed) > 0 {
		t.Errorf("killed %v", f.killed)
	}
	if _, err := os.Stat(record); err == nil {
		t.Error("the record of a closed tree is still there")
	}
}

func matching(list []string, text string) []string {
	var found []string
	for _, one := range list {
		if strings.Contains(one, text) {
			found = append(found, one)
		}
	}
	return found
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, mounts, groups string
		want                 []place
	}{
		{"a host", mountLine(V2, "/", "/sys/fs/cgroup"), "0::/system.slice/mesh.service\n",
			[]place{{V2, "/sys/fs/cgroup/system.slice/mesh.service"}}},
		{"a container with a name space of its own", mountLine(V2, "/", "/sys/fs/cgroup"), "0::/\n",
			[]place{{V2, "/sys/fs/cgroup"}}},
		{"a container without", mountLine(V1, "/docker/ab", "/sys/fs/cgroup/memory"), "4:memory:/docker/ab\n",
			[]place{{V1, "/sys/fs/cgroup/memory"}}},
		{"below a container's", mountLine(V1, "/docker/ab", "/sys/fs/cgroup/memory"), "4:memory:/docker/ab/x\n",
			[]place{{V1, "/sys/fs/cgroup/memory/x"}}},
		{"both, and blanks", mountLine(V1, "/", "/a b/memory") + mountLine(V2, "/", "/a b/unified"), "4:memory:/c d\n0::/e:f\n",
			[]place{{V2, "/a b/unified/e:f"}, {V1, "/a b/memory/c d"}}},
		{"memory mounted with others", "35 31 0:32 / /m rw - cgroup cgroup rw,cpu,memory\n", "4:cpu,memory:/x\n", []place{{V1, "/m/x"}}},
		{"another controller", "35 31 0:32 / /m rw - cgroup cgroup rw,cpu\n", "4:cpu:/x\n", nil},
		{"nonsense", "35 31\n - cgroup2\nx - cgroup2 a b\n", "\n:\n::\n0:\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(c.want, places(c.mounts, c.groups, "memory"), cmp.AllowUnexported(place{})); d != "" {
				t.Errorf("places (-want +got):\n%s", d)
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	if a, b := NameOf("/data/a"), NameOf("/data/b"); a == b || a != NameOf("/data/a") || !strings.HasPrefix(a, "toolmesh-") || a == leaf {
		t.Errorf("names %q and %q", a, b)
	}
}

// A process has as much memory as the machine, or as the narrowest group above it.
func TestMemoryOfTheProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{V1, V2} {
		f := newFake(t, kind)
		file := map[Kind]string{V1: "memory.limit_in_bytes", V2: "memory.max"}[kind]
		f.add("/service/inner")
		f.proc["cgroup"] = groupLine(kind, "/service/inner")
		diff(t, string(kind)+" unbounded", memoryOf(f.kernel(), 8e9), int64(8e9))
		f.set("service/"+file, "2000000000\n")
		diff(t, string(kind)+" bounded above", memoryOf(f.kernel(), 8e9), int64(2e9))
		f.set("service/inner/"+file, "1000000000\n")
		diff(t, string(kind)+" bounded", memoryOf(f.kernel(), 8e9), int64(1e9))
	}
	f := newFake(t, V2)
	f.proc = nil
	diff(t, "without groups", memoryOf(f.kernel(), 8e9), int64(8e9))
}

// A call that was cut off closes its worker's group while, or after, the executor closes the tree.
func TestGroupsAreClosedWithTheirTree(t *testing.T) {
	tree := opened(t, newFake(t, V2), filepath.Join(t.TempDir(), "record"))
	var calls sync.WaitGroup
	for range 20 {
		g, err := tree.New()
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(g.Close)
	}
	tree.Close()
	calls.Wait()
}
