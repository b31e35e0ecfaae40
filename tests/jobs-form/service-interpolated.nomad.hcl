job "service-interpolated" {
  group "g" {
    service {
      name = "${JOB}-${TASKGROUP}-${BASE}-x"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
