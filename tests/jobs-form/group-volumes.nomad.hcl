job "group-volumes" {
  group "g" {
    volume "host" {
      type = "host"
      source = "data"
      read_only = true
    }
    volume "csi" {
      type = "csi"
      source = "db"
      access_mode = "single-node-writer"
      attachment_mode = "file-system"
      per_alloc = true
      mount_options {
        fs_type = "ext4"
        mount_flags = ["noatime"]
      }
    }
    volume "sticky" {
      type = "host"
      source = "data2"
      sticky = true
      access_mode = "single-node-writer"
      attachment_mode = "file-system"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
