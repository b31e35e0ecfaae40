job "task-lifecycle" {
  group "g" {
    task "before" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      lifecycle {
        hook = "prestart"
        sidecar = true
      }
    }
    task "after" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      lifecycle {
        hook = "poststop"
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      leader = true
    }
  }
}
