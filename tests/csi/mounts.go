package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// mounter is what the driver does to the kernel. Each of it may be done twice.
type mounter interface {
	isMounted(path string) bool
	bind(from, to string, readonly bool) error
	// image mounts the file system in a file, which gets one where it has none, by a loop device that goes with the mount.
	image(file, to, fsType string, flags []string) error
	unmount(path string) error
	// device has a file as a block device at a path; release undoes it.
	device(file, to string) error
	release(file, path string) error
	// resize has the loop devices of a file, and the file system on them, know its new size.
	resize(file string, block bool) error
}

func newMounter(dry bool, state string) mounter {
	if dry {
		return dryMounter{filepath.Join(state, "dry")}
	}
	return kernel{}
}

type kernel struct{}

func (kernel) isMounted(path string) bool {
	var found unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &found)
	return err == nil && found.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func (k kernel) bind(from, to string, readonly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if !readonly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errorsOf(fmt.Errorf("make read-only: %w", err), k.unmount(to))
	}
	return nil
}

func (k kernel) unmount(path string) error {
	for k.isMounted(path) {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}

// hasFileSystem says whether a file begins as ext4 does.
func hasFileSystem(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	magic := make([]byte, 2)
	_, err = file.ReadAt(magic, 0x438)
	return magic[0] == 0x53 && magic[1] == 0xef, err
}

func program(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (kernel) image(file, to, fsType string, flags []string) error {
	if fsType != "" && fsType != "ext4" {
		return fmt.Errorf("file system %q: only ext4 is known", fsType)
	}
	has, err := hasFileSystem(file)
	if err == nil && !has {
		err = program("mkfs.ext4", "-q", "-F", file)
	}
	if err != nil {
		return err
	}
	loop, err := attach(file, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	// The mount keeps the device; a process that is killed before leaves none.
	defer loop.Close()
	var options uintptr
	rest := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		bits := map[string]uintptr{"ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "noexec": unix.MS_NOEXEC}
		options |= bits[flag]
		return bits[flag] != 0
	})
	return unix.Mount(loop.Name(), to, "ext4", options, strings.Join(rest, ","))
}

// attach has a file as a free loop device.
func attach(path string, flags uint32) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		if closed := loop.Close(); !errors.Is(err, unix.EBUSY) || closed != nil {
			return nil, errorsOf(fmt.Errorf("%s: %w", loop.Name(), err), closed)
		}
		// Somebody else was faster.
	}
}

// loops are the devices of a file.
func loops(file string) ([]string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, one := range all {
		text, err := os.ReadFile(one)
		if err == nil && strings.TrimSuffix(string(text), "\n") == file {
			found = append(found, "/dev/"+strings.Split(one, "/")[3])
		}
	}
	return found, nil
}

func (k kernel) device(file, to string) error {
	if k.isMounted(to) {
		return nil
	}
	point, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := point.Close(); err != nil {
		return err
	}
	found, err := loops(file)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return k.bind(found[0], to, false)
	}
	// Nothing holds the device but its file, until it is released.
	loop, err := attach(file, 0)
	if err != nil {
		return err
	}
	return errorsOf(loop.Close(), k.bind(loop.Name(), to, false))
}

func (k kernel) release(file, path string) error {
	if err := errorsOf(k.unmount(path), gone(os.Remove(path))); err != nil {
		return err
	}
	found, err := loops(file)
	if err != nil {
		return err
	}
	for _, one := range found {
		loop, err := os.OpenFile(one, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD)
		if errors.Is(err, unix.ENXIO) {
			err = nil // it was released meanwhile
		}
		if err := errorsOf(err, loop.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (kernel) resize(file string, block bool) error {
	found, err := loops(file)
	if err != nil {
		return err
	}
	for _, one := range found {
		loop, err := os.OpenFile(one, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY)
		if err := errorsOf(err, loop.Close()); err != nil {
			return err
		}
		if !block {
			if err := program("resize2fs", one); err != nil {
				return err
			}
		}
	}
	return nil
}

func statfs(path string) ([]*csi.VolumeUsage, error) {
	var found unix.Statfs_t
	if err := unix.Statfs(path, &found); err != nil {
		return nil, err
	}
	size := found.Bsize
	return []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(found.Blocks) * size, Available: int64(found.Bavail) * size,
			Used: int64(found.Blocks-found.Bfree) * size,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(found.Files), Available: int64(found.Ffree),
			Used: int64(found.Files - found.Ffree),
		},
	}, nil
}

// dryMounter notes what it should have mounted, in files that the next process finds.
type dryMounter struct{ dir string }

func (d dryMounter) note(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:]))
}

func (d dryMounter) isMounted(path string) bool {
	_, err := os.Stat(d.note(path))
	return err == nil
}

func (d dryMounter) mount(path string) error {
	return errorsOf(os.MkdirAll(d.dir, 0o700), os.WriteFile(d.note(path), []byte(path), 0o600))
}

func (d dryMounter) bind(_, to string, _ bool) error         { return d.mount(to) }
func (d dryMounter) image(_, to, _ string, _ []string) error { return d.mount(to) }
func (d dryMounter) device(_, to string) error               { return d.mount(to) }
func (d dryMounter) unmount(path string) error               { return gone(os.Remove(d.note(path))) }
func (d dryMounter) release(_, path string) error            { return d.unmount(path) }
func (d dryMounter) resize(string, bool) error               { return nil }
