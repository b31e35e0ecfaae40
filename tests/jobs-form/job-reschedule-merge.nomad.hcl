job "job-reschedule-merge" {
  reschedule {
    delay = "10s"
  }
  group "g" {
    reschedule {
      max_delay = "10m"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
