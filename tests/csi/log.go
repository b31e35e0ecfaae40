package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// entry is one line of the log. A secret's value is never in it, nor a mount flag.
type entry struct {
	Seq      int      `json:"seq"`
	Pid      int      `json:"pid"`
	Phase    string   `json:"phase"` // begin, end, or fault
	Call     string   `json:"call"`
	Volume   string   `json:"volume,omitempty"`
	Staging  string   `json:"staging,omitempty"`
	Target   string   `json:"target,omitempty"`
	Access   string   `json:"access,omitempty"` // mount or block
	Mode     string   `json:"mode,omitempty"`
	FsType   string   `json:"fs_type,omitempty"`
	Flags    int      `json:"flags,omitempty"` // how many
	Readonly bool     `json:"readonly,omitempty"`
	Secrets  []string `json:"secrets,omitempty"` // the keys
	Code     string   `json:"code,omitempty"`
	Message  string   `json:"message,omitempty"`
	Fault    string   `json:"fault,omitempty"`
}

// callLog is one ordered log, which every process of the driver goes on with.
type callLog struct {
	mutex sync.Mutex
	file  *os.File
	seq   int
}

func openLog(path string) (*callLog, error) {
	if path == "" {
		return &callLog{}, nil
	}
	before, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &callLog{file: file, seq: bytes.Count(before, []byte("\n"))}, nil
}

func (l *callLog) write(e entry) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file == nil {
		return
	}
	l.seq++
	e.Seq, e.Pid = l.seq, os.Getpid()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // without its log the driver tells nothing
	}
}

// about says what of a request may be in the log.
func about(call string, request any) entry {
	e := entry{Call: call}
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		e.Volume = r.GetVolumeId()
	} else if r, ok := request.(interface{ GetSourceVolumeId() string }); ok {
		e.Volume = r.GetSourceVolumeId()
	} else if r, ok := request.(interface{ GetName() string }); ok {
		e.Volume = r.GetName()
	}
	if r, ok := request.(interface{ GetStagingTargetPath() string }); ok {
		e.Staging = r.GetStagingTargetPath()
	}
	if r, ok := request.(interface{ GetTargetPath() string }); ok {
		e.Target = r.GetTargetPath()
	} else if r, ok := request.(interface{ GetVolumePath() string }); ok {
		e.Target = r.GetVolumePath()
	}
	if r, ok := request.(interface{ GetReadonly() bool }); ok {
		e.Readonly = r.GetReadonly()
	}
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		for key := range r.GetSecrets() {
			e.Secrets = append(e.Secrets, key)
		}
		slices.Sort(e.Secrets)
	}
	if r, ok := request.(interface {
		GetVolumeCapability() *csi.VolumeCapability
	}); ok && r.GetVolumeCapability() != nil {
		capability := r.GetVolumeCapability()
		e.Mode = capability.GetAccessMode().GetMode().String()
		if e.Access = "mount"; capability.GetBlock() != nil {
			e.Access = "block"
		}
		e.FsType, e.Flags = capability.GetMount().GetFsType(), len(capability.GetMount().GetMountFlags())
	}
	return e
}
