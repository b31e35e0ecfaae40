package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// volume is what is kept of a volume, by controller and node.
type volume struct {
	ID       string
	Seq      int // in the order of their making
	Name     string
	Capacity int64
	Block    bool   // a raw device
	Backend  string // directory or loop
	Snapshot string // that it was made from
	Source   string // the volume that it was made from
	// By node id.
	Attached map[string]attachment `json:",omitempty"`
	// By path; what is said to be there is there only when it is mounted, too.
	Staged    map[string]usage `json:",omitempty"`
	Published map[string]usage `json:",omitempty"`
}

type attachment struct {
	Readonly bool
	Mode     int32
}

// usage is how a volume is used at a path.
type usage struct {
	Staging  string
	Mode     int32
	Block    bool
	FsType   string
	Flags    []string
	Readonly bool
}

func (u usage) equals(other usage) bool {
	return u.Staging == other.Staging && u.Mode == other.Mode && u.Block == other.Block && u.FsType == other.FsType &&
		u.Readonly == other.Readonly && slices.Equal(u.Flags, other.Flags)
}

type snapshot struct {
	ID     string
	Seq    int
	Name   string
	Source string
	Size   int64
	Block  bool
	// Of the source.
	Backend string
	Made    *timestamppb.Timestamp
}

// store keeps volumes and snapshots in files, one each, and says who of their callers may work on one.
type store struct {
	dir   string
	mutex sync.Mutex
	busy  map[string]bool
}

func openStore(dir string) (*store, error) {
	s := &store{dir: dir, busy: map[string]bool{}}
	for _, kind := range []string{"volumes", "snapshots", "data"} {
		if err := os.MkdirAll(filepath.Join(dir, kind), 0o700); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// take has a volume worked on by one call at a time. A second one fails: it is the caller who has to wait.
func (s *store) take(id string) (func(), error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.busy[id] {
		return nil, status.Errorf(codes.Aborted, "an operation is pending for %s", id)
	}
	s.busy[id] = true
	return func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.busy, id)
	}, nil
}

// data is where the bytes of a volume or snapshot are: a directory or an image.
func (s *store) data(id string) string { return filepath.Join(s.dir, "data", id) }

func (s *store) path(kind, id string) string { return filepath.Join(s.dir, kind, id+".json") }

// isName says whether a caller's id can be the name of a file of ours.
func isName(id string) bool {
	decoded, err := hex.DecodeString(id)
	return err == nil && len(decoded) == 16
}

func read[T any](s *store, kind, id string) (*T, error) {
	if !isName(id) {
		return nil, status.Errorf(codes.NotFound, "there is no %q among the %s", id, kind)
	}
	text, err := os.ReadFile(s.path(kind, id))
	if os.IsNotExist(err) {
		return nil, status.Errorf(codes.NotFound, "there is no %q among the %s", id, kind)
	} else if err != nil {
		return nil, err
	}
	value := new(T)
	return value, json.Unmarshal(text, value)
}

func (s *store) volume(id string) (*volume, error)     { return read[volume](s, "volumes", id) }
func (s *store) snapshot(id string) (*snapshot, error) { return read[snapshot](s, "snapshots", id) }

func (s *store) write(kind, id string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	// A process that is killed leaves the old file or the new one.
	path := s.path(kind, id)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (s *store) save(v *volume) error { return s.write("volumes", v.ID, v) }

func (s *store) remove(kind, id string) error {
	return errorsOf(os.RemoveAll(s.data(id)), gone(os.Remove(s.path(kind, id))))
}

func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func errorsOf(all ...error) error { return errors.Join(all...) }

func list[T any](s *store, kind string) ([]*T, error) {
	found, err := filepath.Glob(filepath.Join(s.dir, kind, "*.json"))
	if err != nil {
		return nil, err
	}
	all := []*T{}
	for _, path := range found {
		id := filepath.Base(path)
		value, err := read[T](s, kind, id[:len(id)-len(".json")])
		if status.Code(err) == codes.NotFound {
			continue // it was removed meanwhile
		} else if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, nil
}

func (s *store) volumes() ([]*volume, error) {
	all, err := list[volume](s, "volumes")
	slices.SortFunc(all, func(a, b *volume) int { return a.Seq - b.Seq })
	return all, err
}

func (s *store) snapshots() ([]*snapshot, error) {
	all, err := list[snapshot](s, "snapshots")
	slices.SortFunc(all, func(a, b *snapshot) int { return a.Seq - b.Seq })
	return all, err
}

// seq is a number that no volume or snapshot had before.
func (s *store) seq() (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	path := filepath.Join(s.dir, "seq")
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return 0, err
	}
	last := 0
	if len(text) > 0 {
		if last, err = strconv.Atoi(string(text)); err != nil {
			return 0, err
		}
	}
	return last + 1, os.WriteFile(path, []byte(strconv.Itoa(last+1)), 0o600)
}

func newID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

// fill makes the bytes of a new volume or snapshot: those of another one, or none.
func (s *store) fill(id, from, backend string, size int64) error {
	path := s.data(id)
	// What a killed process may have begun.
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if from != "" {
		if out, err := exec.Command("cp", "-a", "--sparse=always", s.data(from), path).CombinedOutput(); err != nil {
			return status.Errorf(codes.Internal, "cp: %v: %s", err, out)
		}
	} else if backend == "directory" {
		return os.Mkdir(path, 0o777)
	}
	if backend == "directory" {
		return nil
	}
	return grow(path, size)
}

// grow has an image of at least this size.
func grow(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && info.Size() < size {
		err = file.Truncate(size)
	}
	return errorsOf(err, file.Close())
}
