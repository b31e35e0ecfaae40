job "task-artifacts" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      artifact {
        source = "https://example.com/a.tar.gz"
        destination = "local/x"
        mode = "dir"
        insecure = true
        chown = true
        options {
          checksum = "md5:d41d8cd98f00b204e9800998ecf8427e"
          archive = false
        }
        headers {
          X-Token = "t"
        }
      }
      artifact {
        source = "https://example.com/dir/file.txt"
        mode = "file"
      }
      artifact {
        source = "git::https://example.com/x"
      }
    }
  }
}
