package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	answer := &csi.NodeGetInfoResponse{NodeId: d.node, MaxVolumesPerNode: int64(d.most)}
	if d.topology != "" {
		answer.AccessibleTopology = &csi.Topology{Segments: d.segments()}
	}
	return answer, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	kinds := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.stage {
		kinds = append(kinds, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range kinds {
		rpc := &csi.NodeServiceCapability_RPC{Type: kind}
		answer.Capabilities = append(answer.Capabilities,
			&csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}})
	}
	return answer, nil
}

// usageOf is how a request wants its volume.
func usageOf(capability *csi.VolumeCapability, staging string, readonly bool) usage {
	mode := capability.GetAccessMode().GetMode()
	readonly = readonly || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	return usage{
		Staging: staging, Mode: int32(mode), Block: capability.GetBlock() != nil,
		FsType: capability.GetMount().GetFsType(), Flags: slices.Clone(capability.GetMount().GetMountFlags()), Readonly: readonly,
	}
}

// isAttached refuses a volume that the controller should have attached first, and has not.
func (d *driver) isAttached(v *volume, publishContext map[string]string) error {
	if _, attached := v.Attached[d.node]; d.attach && (!attached || publishContext["attached"] != v.ID) {
		return status.Error(codes.FailedPrecondition, "the volume is not attached to this node")
	}
	return nil
}

// use does what puts a volume at a path, once. It is noted before it is done: a killed process leaves a note without a mount, and
// the next call does it again.
func (d *driver) use(
	ctx context.Context, v *volume, at *map[string]usage, path string, wanted usage, mount func() error,
) error {
	if found, ok := (*at)[path]; ok && !found.equals(wanted) {
		return status.Errorf(codes.AlreadyExists, "the volume is at %s in another way", path)
	} else if ok && d.mounts.isMounted(path) {
		return nil
	}
	if *at == nil {
		*at = map[string]usage{}
	}
	(*at)[path] = wanted
	if err := d.store.save(v); err != nil {
		return err
	}
	if err := d.step(ctx, "noted"); err != nil {
		return err
	}
	if err := mount(); err != nil {
		return status.Errorf(codes.Internal, "%s: %v", path, err)
	}
	return d.step(ctx, "mounted")
}

func (d *driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or staging_target_path is missing")
	}
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if !d.stage {
		return nil, status.Error(codes.Unimplemented, "volumes are not staged")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.isAttached(v, r.GetPublishContext()); err != nil {
		return nil, err
	}
	wanted, path := usageOf(r.GetVolumeCapability(), "", false), r.GetStagingTargetPath()
	if wanted.Block != v.Block {
		return nil, status.Error(codes.InvalidArgument, "the volume is of the other access type")
	}
	for other := range v.Staged {
		if other != path {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is staged at %s", other)
		}
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, status.Errorf(codes.Internal, "the directory %s is not there, which the caller makes", path)
	}
	return &csi.NodeStageVolumeResponse{}, d.use(ctx, v, &v.Staged, path, wanted, func() error { return d.put(v, path, wanted) })
}

// put has the volume's file system at a directory; of a block volume a file `device` in it.
func (d *driver) put(v *volume, path string, wanted usage) error {
	data := d.store.data(v.ID)
	if v.Block {
		return d.mounts.device(data, filepath.Join(path, "device"))
	}
	if v.Backend == "directory" {
		return d.mounts.bind(data, path, false)
	}
	return d.mounts.image(data, path, wanted.FsType, wanted.Flags)
}

func (d *driver) NodeUnstageVolume(
	ctx context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	path := r.GetStagingTargetPath()
	if r.GetVolumeId() == "" || path == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or staging_target_path is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	for target, use := range v.Published {
		if use.Staging == path {
			return nil, status.Errorf(codes.Internal, "the volume is published at %s still", target)
		}
	}
	if err := d.takeAway(v, path); err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", path, err)
	}
	if err := d.step(ctx, "unmounted"); err != nil {
		return nil, err
	}
	delete(v.Staged, path)
	return &csi.NodeUnstageVolumeResponse{}, d.store.save(v)
}

// takeAway undoes put.
func (d *driver) takeAway(v *volume, path string) error {
	if v.Block {
		return d.mounts.release(d.store.data(v.ID), filepath.Join(path, "device"))
	}
	return d.mounts.unmount(path)
}

func (d *driver) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	path, staging := r.GetTargetPath(), r.GetStagingTargetPath()
	if r.GetVolumeId() == "" || path == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or target_path is missing")
	}
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.isAttached(v, r.GetPublishContext()); err != nil {
		return nil, err
	}
	wanted := usageOf(r.GetVolumeCapability(), staging, r.GetReadonly())
	if wanted.Block != v.Block {
		return nil, status.Error(codes.InvalidArgument, "the volume is of the other access type")
	}
	if err := d.isStaged(v, wanted); err != nil {
		return nil, err
	}
	single := wanted.Mode == int32(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
	for other := range v.Published {
		if other != path && single {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is published at %s", other)
		}
	}
	return &csi.NodePublishVolumeResponse{}, d.use(ctx, v, &v.Published, path, wanted, func() error {
		return d.publish(v, path, wanted)
	})
}

func (d *driver) isStaged(v *volume, wanted usage) error {
	if !d.stage {
		return nil
	}
	if wanted.Staging == "" {
		return status.Error(codes.FailedPrecondition, "staging_target_path is missing")
	}
	staged, ok := v.Staged[wanted.Staging]
	if !ok || !v.Block && !d.mounts.isMounted(wanted.Staging) {
		return status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s", wanted.Staging)
	}
	if staged.FsType != wanted.FsType || staged.Mode != wanted.Mode {
		return status.Error(codes.AlreadyExists, "the volume is staged in another way")
	}
	return nil
}

// publish has at a path what is staged, or without staging the volume itself. The path is the driver's to make.
func (d *driver) publish(v *volume, path string, wanted usage) error {
	if v.Block {
		from := filepath.Join(wanted.Staging, "device")
		if !d.stage {
			return d.mounts.device(d.store.data(v.ID), path)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return errorsOf(file.Close(), d.mounts.bind(from, path, wanted.Readonly))
	}
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	if d.stage {
		return d.mounts.bind(wanted.Staging, path, wanted.Readonly)
	}
	if v.Backend == "directory" {
		return d.mounts.bind(d.store.data(v.ID), path, wanted.Readonly)
	}
	flags := wanted.Flags
	if wanted.Readonly {
		flags = append(slices.Clone(flags), "ro")
	}
	return d.mounts.image(d.store.data(v.ID), path, wanted.FsType, flags)
}

func (d *driver) NodeUnpublishVolume(
	ctx context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	path := r.GetTargetPath()
	if r.GetVolumeId() == "" || path == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or target_path is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	if v.Block && !d.stage {
		err = d.mounts.release(d.store.data(v.ID), path)
	} else {
		err = d.mounts.unmount(path)
	}
	if err == nil {
		err = d.step(ctx, "unmounted")
	}
	if err == nil {
		err = gone(os.Remove(path))
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", path, err)
	}
	delete(v.Published, path)
	return &csi.NodeUnpublishVolumeResponse{}, d.store.save(v)
}

// known says whether a path is one where this volume is.
func (v *volume) isAt(path string) bool {
	_, staged := v.Staged[path]
	_, published := v.Published[path]
	return staged || published
}

func (d *driver) NodeGetVolumeStats(
	ctx context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_path is missing")
	}
	v, err := d.store.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if !v.isAt(r.GetVolumePath()) {
		return nil, status.Errorf(codes.NotFound, "the volume is not at %s", r.GetVolumePath())
	}
	if v.Block {
		total := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: v.Capacity}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{total}}, nil
	}
	used, err := statfs(r.GetVolumePath())
	return &csi.NodeGetVolumeStatsResponse{Usage: used}, err
}

func (d *driver) NodeExpandVolume(
	ctx context.Context, r *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_path is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	if !v.isAt(r.GetVolumePath()) {
		return nil, status.Errorf(codes.NotFound, "the volume is not at %s", r.GetVolumePath())
	}
	if _, err := sizeOf(r.GetCapacityRange(), v.Capacity); err != nil {
		return nil, err
	}
	if v.Backend == "loop" {
		if err := d.mounts.resize(d.store.data(v.ID), v.Block); err != nil {
			return nil, status.Errorf(codes.Internal, "resize: %v", err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}
